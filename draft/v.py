import numpy as np, kerascl as kc, sys, ml_dtypes, time
rng=np.random.default_rng()
assert 'cpured' in kc.__file__
bad=0;cnt=0
dts=['float32','float64','int32','int64','uint8','int8','int16','uint16','uint32','uint64','bool','float16','bfloat16']
lens=sorted({64,65,71,79,80,95,127,128,129,255,300,1000,1023,1040,4096+13,70001})
if len(sys.argv)>1: dts=sys.argv[1].split(',')
for dt in dts:
  for n in lens:
    for rows in ((),(3,)):
      sh=rows+(n,)
      d=getattr(ml_dtypes,dt) if dt=='bfloat16' else np.dtype(dt)
      k='f' if dt=='bfloat16' else np.dtype(dt).kind
      if k=='f': h=rng.normal(size=sh).astype(np.float32).astype(d)
      elif k=='b': h=rng.random(sh)<(1/n)
      else: h=rng.integers(np.iinfo(d).min,np.iinfo(d).max,sh,dtype=d,endpoint=True)
      forms=[h]
      if k=='f':
        a=h.copy().reshape(-1); a[rng.integers(0,a.size,3)]=np.nan; forms.append(a.reshape(sh))
        a=h.copy().reshape(-1); a[rng.integers(0,a.size,2)]=np.inf; a[rng.integers(0,a.size,2)]=-np.inf; forms.append(a.reshape(sh))
        forms.append(np.where(rng.random(sh)<.5,-0.0,0.0).astype(d)); forms.append(np.full(sh,-np.inf).astype(d))
      else: forms.append((h%3).astype(d) if k!='b' else ~h)
      for h in forms:
        x=kc.array(h); w=h.astype(np.float64) if k=='f' else h
        with np.errstate(all='ignore'):
         for name in ('sum','mean','max','min','argmax','argmin','any','all','count_nonzero'):
          if k=='b' and name in('max','min','argmax','argmin','mean'): continue
          if name=='mean' and k!='f': continue
          for jit in ((False,True) if n in (80,1023) else (False,)):
            f=lambda x: getattr(kc,name)(x,axis=-1)
            found=(kc.jit(f) if jit else f)(x).numpy()
            exp=getattr(np,name)(w,axis=-1)
            cnt+=1
            if name in('sum','mean') and k=='f':
                scale=np.abs(w).sum(-1)/(n if name=='mean' else 1)
                eps={'float32':2e-7,'float64':1e-15,'float16':1e-3,'bfloat16':8e-3}[dt]
                F=found.astype(np.float64)
                fin=np.isfinite(exp)
                ok=np.all(np.where(fin,np.abs(F-exp)<=eps*np.where(np.isfinite(scale),scale,1)+np.abs(exp)*(eps if dt in('float16','bfloat16') else 0),(F==exp)|(np.isnan(F)&np.isnan(exp)) ))
            else:
                F=found.astype(exp.dtype)
                ok=np.array_equal(F,exp,equal_nan=k=='f' and name in('max','min'))
            if not ok: bad+=1; print('BAD',dt,sh,name,jit,found,exp) if bad<30 else 0
print('bad',bad,'of',cnt)

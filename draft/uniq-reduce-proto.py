import numpy as np, pyopencl as cl, kerascl as kc, time
d=kc.current_device(); q=d.queue
n=10**6; h=np.random.rand(n).astype('f')
x=kc.array(h); x.evaluate(); out=kc.zeros(4096); out.evaluate()
base='''__kernel void f(__global const float*a,__global float*o,int n,int run){const int l=get_local_id(0);int e=min(n,(int)(get_group_id(1)+1)*run);
    float s=-INFINITY; int r=get_group_id(1)*run+l; for(;r<e;r+=16){const float v=a[r];s=((v>s)|(v!=v))?v:s;} o[get_group_id(1)*16+l]=s;}'''
vec='''__kernel void f(__global const float*a,__global float*o,int n,int run){int b=get_group_id(1)*run,e=min(n,b+run);
    float%(w)s %(decl)s; int r=b; for(;r+%(wu)s<=e;r+=%(wu)s){%(body)s} %(comb)s
    float t[%(w)s]; vstore%(w)s(s0,0,t); float m=-INFINITY; for(;r<e;r++) {float v=a[r]; m=(v>m|v!=v)?v:m;} for(int k=0;k<%(w)s;k++)m=(t[k]>m|t[k]!=t[k])?t[k]:m; o[get_group_id(1)]=m;}'''
def v(w,u):
    return vec%dict(w=w,wu=w*u,decl=','.join(f's{k}=-INFINITY' for k in range(u)),body=''.join(f'{{float{w} v=vload{w}(0,a+r+{k*w});s{k}=select(s{k},v,(v>s{k})|(v!=v));}}' for k in range(u)),comb=''.join(f's0=select(s0,s{k},(s{k}>s0)|(s{k}!=s{k}));' for k in range(1,u)))
ks=[('now',cl.Program(d.context,base).build().f,16,8)]
for w,u,g in [(8,1,8),(8,2,8),(8,4,8),(16,1,8),(16,2,8),(16,4,8),(16,2,2)]:
    ks.append((f'v{w}x{u} g{g}',cl.Program(d.context,v(w,u)).build().f,1,g))
ts={}
for rep in range(40):
    for name,k,items,groups in ks:
        k.set_args(x._node.buffer.handle,out._node.buffer.handle,np.int32(n),np.int32(-(-n//groups)))
        a=time.perf_counter(); cl.enqueue_nd_range_kernel(q.handle,k,(items,groups),(items,1)); q.handle.finish(); ts.setdefault(name,[]).append(time.perf_counter()-a)
        if rep==0: assert kc.asarray(out).numpy()[:items*groups].max()==h.max(),name
for name,t in ts.items(): t.sort(); print(f'{name:10s} best {t[1]*1e6:7.0f} median {t[len(t)//2]*1e6:7.0f} us')
a=[]
for _ in range(40): s=time.perf_counter(); h.max(); a.append(time.perf_counter()-s)
a.sort(); print('numpy',a[1]*1e6,a[20]*1e6)

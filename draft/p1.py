import numpy as np, pyopencl as cl, kerascl as kc, time, sys
d=kc.current_device(); q=d.queue
n=10**6; h=np.random.rand(n).astype('f')
x=kc.array(h); x.evaluate(); out=kc.zeros(4096); out.evaluate()
pre='__kernel void f(__global const float*a,__global float*o,int n,int run){const int lid=get_local_id(0);const int rl=lid;const int r_begin=get_group_id(1)*run,r_end=min(n,(int)(r_begin+run));float s=-INFINITY;'
post='o[get_group_id(1)*W+lid]=s;}'
step='s=((v>s)|(v!=v))?v:s;'
lp={
'now': 'int r=r_begin+rl;for(;r<r_end;r+=W){const float v=a[r];'+step+'}',
'uni': 'int b=r_begin;for(;b+W<=r_end;b+=W){const int r=b+rl;const float v=a[r];'+step+'} {int r=b+rl;if(r<r_end){const float v=a[r];'+step+'}}',
'uniL': 'long b=r_begin;const long e=r_end;for(;b+W<=e;b+=W){const long r=b+rl;const float v=a[r];'+step+'} {long r=b+rl;if(r<e){const float v=a[r];'+step+'}}',
'uniG': 'long b=r_begin;const long e=r_end;for(;b+W<=e;b+=W){const float v=a[b+get_local_id(0)];'+step+'} {long r=b+rl;if(r<e){const float v=a[r];'+step+'}}',
'blk': 'int b=r_begin;for(;b+4*W<=r_end;b+=4*W){const int r=b+rl;'+''.join('{const float v=a[r+%d*W];%s}'%(k,step) for k in range(4))+'} {int r=b+rl;for(;r<r_end;r+=W){const float v=a[r];'+step+'}}',
'blkg': '__global const float* p=a+r_begin;int b=r_begin;for(;b+4*W<=r_end;b+=4*W,p+=4*W){'+''.join('{const float v=p[%d*W+get_local_id(0)];%s}'%(k,step) for k in range(4))+'} {int r=b+rl;for(;r<r_end;r+=W){const float v=a[r];'+step+'}}',
}
ks=[]
for W in (16,64):
  for bar in ('','barrier(CLK_LOCAL_MEM_FENCE);'):
   for name,t in lp.items():
    tail = 'o[get_group_id(1)*W+lid]=s;}' if not bar else '__local float L[W];L[lid]=s;'+bar+'for(int d=W/2;d>0;d>>=1){if(rl<d){float t=L[lid+d];s=((t>s)|(t!=t))?t:s;L[lid]=s;}'+bar+'} s=L[0]; if(rl==0)o[get_group_id(1)*W]=s;}'
    ks.append((f'{name} {W} {bool(bar)}',cl.Program(d.context,pre.replace('W',str(W))+t.replace('W',str(W))+tail.replace('W',str(W))).build().f,W,8))
ts={}
for rep in range(30):
    for name,k,items,groups in ks:
        k.set_args(x._node.buffer.handle,out._node.buffer.handle,np.int32(n),np.int32(-(-n//groups)))
        a=time.perf_counter(); cl.enqueue_nd_range_kernel(q.handle,k,(items,groups),(items,1)); q.handle.finish(); ts.setdefault(name,[]).append(time.perf_counter()-a)
for name,t in ts.items(): t.sort(); print(f'{name:20s} best {t[1]*1e6:7.0f} median {t[len(t)//2]*1e6:7.0f} us')
a=[]
for _ in range(40): s=time.perf_counter(); h.max(); a.append(time.perf_counter()-s)
a.sort(); print('numpy',a[1]*1e6,a[20]*1e6)

exec(open('/tmp/p2.py').read().split("ks=[(nm,")[0])
import subprocess
sel=sys.argv[1:]
for nm,t,i,g in ks:
    if sel and nm not in sel: continue
    if not sel:
        r=subprocess.run([sys.executable,__file__,nm],capture_output=True,text=True); print(r.stdout.strip() or (nm,'rc',r.returncode),flush=True); continue
    k=cl.Program(d.context,t).build().f; ts=[]
    for rep in range(25):
        k.set_args(x._node.buffer.handle,out._node.buffer.handle,np.int32(n),np.int32(-(-n//g)))
        a=time.perf_counter(); cl.enqueue_nd_range_kernel(q.handle,k,(i,g),(i,1)); q.handle.finish(); ts.append(time.perf_counter()-a)
    ts.sort(); print(f'{nm:20s} best {ts[1]*1e6:7.0f} median {ts[len(ts)//2]*1e6:7.0f} us')

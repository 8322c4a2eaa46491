"""x"""
def test_plain(run):
    program = run("""
    import time, socket, threading
    for _ in range(5): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    u = socket.socket(type=socket.SOCK_DGRAM); u.bind(("127.0.0.1", 0))
    l = socket.create_server(("127.0.0.1", 0))
    n = 0
    while True:
        n += 1; time.sleep(0.01); print(n, flush=True)
""")
    program.fresh_line()
    s = program.save()
    program.fresh_line()
    s = program.save(stop=True)
    r = program.resume(s.manifest.info.snapshot_id)
    print(*r.warnings, sep="\n")
    print([x for x in s.manifest.streams if x.name=="audit"])
    program.fresh_line()
    assert 0

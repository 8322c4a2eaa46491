"""jupyter_client's blocking client, which uses its sockets only while it is asked to."""


def printed(client, code):
    """Run `code` by a blocking client that reads the reply first, then the output until the kernel is idle; return what was printed."""
    request_id, texts = client.execute(code), []
    while client.get_shell_msg(timeout=60)["parent_header"]["msg_id"] != request_id:
        pass
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != request_id:
            continue
        if message["msg_type"] == "stream":
            texts.append(message["content"]["text"])
        elif message["content"].get("execution_state") == "idle":
            return "".join(texts)

"""The relay: kernels of editors that start them by themselves outlive their editor.

An editor runs the stand-in, which tells the relay of this user where the editor will connect. The relay binds those ports and passes
messages on to a kernel under the engine. What it passes on is the kernel's journal, so nothing is lost or sent twice when a process is
killed. Imported in the relay: `service` and what is above the line; `backend` and what is below it, a second later, in a thread.

- `address`: where the relay listens.
- `backend_import`: the late import of `backend`.
- `backend`: what the relay needs of the daemon, and its settings.
- `cell_commands`: cells that the relay answers itself.
- `editor_programs`: the programs that editors start, as connections.
- `editor_requests`: the requests of editors.
- `editor_sockets`: the sockets that an editor connects to.
- `editor_table`: the editors that are there.
- `editors`: one start of an editor.
- `engine_kernels`: the kernels of the relay at the daemon.
- `event_loop`: the relay's event loop.
- `file_changes`: notices that a file was written.
- `journal_tail`: the new messages of a kernel's journal.
- `kept_records`: records of kernels, and which belongs to a notebook.
- `kernel_choice`: which kernel an editor gets.
- `kernel_infos`: what kernels say about themselves.
- `kernel_requests`: the relay's own requests to a kernel.
- `kernel_sockets`: the relay's sockets to a kernel.
- `kernel_table`: the kernels of the relay.
- `notebook_files`: which notebook an editor means.
- `relayed_kernels`: one kernel and its messages.
- `service`: the relay's parts together.
- `signed_messages`: messages, verified and signed again.
- `stand_in`: the program that an editor starts in place of a kernel.
- `traits`: the relay's settings.
- `waiting_requests`: requests that a kernel has not answered.
"""

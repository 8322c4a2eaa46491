"""Use cases of snapshots: save, suspend, resume, export, import, verify; in `working_folder` the files of a kernel's working folder.

- `arrivals`: the check for whether a kernel that was saved elsewhere could be resumed here.
- `changes`: the changes, since a snapshot, of the files that its kernel had open.
- `export`: export of a snapshot as a tar archive that is a store of its own.
- `gpu_packing`: the storing of GPU memory while it is restored to the GPU, and while other memory is stored.
- `gpu_tables`: the digests of GPU memory in snapshots.
- `imports`: import of snapshots from archives that `export.py` wrote, here or on another machine.
- `kept_files`: files that travel with a snapshot because the user chose them.
- `notebooks`: the notebook of a kernel in its snapshot.
- `open_files`: the files that a kernel has open or mapped and that do not travel with its snapshot.
- `rehearsal`: the rehearsal of a resume.
- `resume`: from a snapshot in the store to a running process tree.
- `room`: the memory and disk space that a resume needs, compared with those of this machine.
- `save`: save and suspend.
- `stored_content`: a snapshot's bytes for a thaw.
- `stored_images`: a reader of CRIU's images from the store, except the large ones that hold memory.
- `trial`: the trial of the engine on a small program.
- `unpacked_snapshots`: what several resumes of one snapshot share.
- `unwritten_memory`: the memory of a kernel that a save takes from the predecessor.
- `verify`: verification of a snapshot.
"""

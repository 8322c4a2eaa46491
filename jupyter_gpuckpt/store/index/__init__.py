"""The index of a store: which chunks are in which pack, and where. It can be rebuilt from the packs.

- `catalog`: the index of chunks in packs.
- `contents`: the contents of packs as columns.
- `database`: the SQLite database of a store.
- `indexing`: indexing of packs that the catalog does not know.
- `needs`: the chunks that a snapshot needs.
- `pack_files`: what is known of the files of packs.
- `pack_folder`: the comparison of the catalog with the folder of packs.
- `places`: a table of the places of many chunks.
- `rows`: queries and changes of the store's database, each for one turn.
"""

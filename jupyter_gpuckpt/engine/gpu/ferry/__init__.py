"""The ferry: GPU memory is handed to init and back, without the copies of the CUDA driver."""

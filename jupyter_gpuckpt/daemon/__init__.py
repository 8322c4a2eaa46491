"""gpuckptd: keeps kernels alive beyond the servers that started them, and saves and resumes them."""

"""gpuckptd: the daemon that keeps kernels beyond the end of their servers, and saves and resumes them."""

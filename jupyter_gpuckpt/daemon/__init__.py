"""gpuckptd: the daemon that keeps kernels after their servers end, and saves and resumes them."""

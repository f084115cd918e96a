"""What only a GPU can show: the kernels against the oracle on the device, their times, and the engines."""

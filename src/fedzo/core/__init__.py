"""The ground: random draws by address, directions, the estimator of eq. (2), objectives, devices.

What every other room stands on: counter-based randomness and its kernels, held and streamed
directions, the gradient estimate, what a problem answers to, the federation of threads, counting
of queries, and files written in one step. May import: nothing but ``fedzo.errors``.
"""

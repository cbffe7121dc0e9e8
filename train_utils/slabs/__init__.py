"""One volume, or one large image, on several processes: each trains on a slab, with the results of a single process.

A slab is a range of the first spatial axis. It begins at a multiple of the factor that the poolings divide by, so that
poolings and transposed convolutions stay inside a slab. Convolutions need the border slices of the neighboring slabs,
norms the sums over all slabs, and the loss the sums over a whole image.
Evaluation and prediction do not cut images: there the layers work as on one process.
"""

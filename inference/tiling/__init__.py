"""Tiles: images and volumes of any size in bounded memory, with the result of the whole image where possible.

A tile gives its pixels the logits of the whole image if it starts on the pooling grid (multiples of
`UNetConfig.divisors`) and reaches one receptive field beyond the pixels taken from it, or to the image's border. If
no tile can do so (see `reach`), overlapping tiles are blended with a Gaussian window, as in nnU-Net (Isensee et al.
2021).
"""

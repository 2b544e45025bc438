"""Adaptation of a trained network to a target domain whose labels are not used.

Read the modules in this order:

* ``moments``: pooled statistics of batches, and the divergence of two domains.
* ``domains``: the program that computes a network on both domains, and its session.
* ``coral``: a classifier for aligned features.
* ``adapting``: the methods, their scores and divergences. ``storing``: run directories of adapted networks.
"""

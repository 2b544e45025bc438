"""The interface for Python and notebooks. The package ``runner`` exports its public names; docs/python.md lists them.

Read the modules in this order:

* ``arguments``: overrides from keywords, numbers, and objects such as a model. ``arrays``: a dataset of arrays.
* ``runs``: training, stored runs, and the class ``Run``. ``sweeps``: sweeps and the class ``Sweep``.
* ``weights``: weights as safetensors and as a ``state_dict`` of PyTorch. ``onnx_file``: the network as an ONNX file.
"""

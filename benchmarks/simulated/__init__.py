"""A simulated accelerator: tensors that say ``device='simulated:0'`` and are computed on the CPU.

What real devices do silently, or refuse, is seen on it: every wait of the host, every copy between memories, every
kernel and every cast is counted with the line of the package that caused it, and tensors of two devices in one
operation are an error. How long anything takes it cannot say.
"""

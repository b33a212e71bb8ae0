"""Networks of machines: made with a machine, attested, and gone with it.

The other end of a machine's network is its *peer*: an agent in a network namespace of its own on this host, in which
there is nothing but the link and a loopback. Nothing has a name outside; descriptors and processes of the trial keep
it all alive, so the kernel removes everything with the last of them. `namespaces` makes the namespaces,
`trial_network` is common to all networks, `qemu_link`, `uml_link` and `host_link` join machines to them, and
`attestation` checks the result.
"""

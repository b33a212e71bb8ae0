"""Networks of machines: each is created with its machine, attested, and removed with it.

The other end of a machine's network is its *peer*: an agent in a separate network namespace on this host, with nothing
but the link and a loopback interface. Nothing has a name outside; descriptors and processes of the trial keep
everything alive, so the kernel removes it with the last of them. `namespaces` creates the namespaces, `trial_network`
is common to all networks, `qemu_link`, `uml_link` and `host_link` connect machines to them, and `attestation` checks
the result.

Two networks are none: `vsock` has no packets, and `existing` is what another machine has anyway; then the peer is an
agent of this host.
"""

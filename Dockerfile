# One image for every role. It is the directory build/rootfs and nothing else:
# `make rootfs` lays it out, this file packs it where Docker works, and the
# local cluster imports the same directory where it does not.
FROM scratch
COPY build/rootfs /
ENTRYPOINT ["/usr/bin/nvdra"]

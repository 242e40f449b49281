# Builds an image that holds the lucius binary, the CA certificates and
# nothing else: no shell, no package manager, no user but its own.
#
#   docker build -t lucius .
#   docker run --rm lucius demo
#
# `serve` listens on loopback, inside a container too, until it is told who may
# call: set LUCIUS_AUTH_FILE or LUCIUS_OIDC_ISSUER and then LUCIUS_LISTEN_ADDR
# (see docs/run/access.md). To try it on one machine, run it in the host's network:
#
#   docker run --rm --network host -v ./protocols:/etc/lucius/protocols:ro lucius

FROM golang:1.26.8-bookworm AS build
WORKDIR /src

# The modules change less often than the source: a layer of their own.
COPY go.mod go.sum ./
COPY sdk/go/go.mod sdk/go/go.sum sdk/go/
COPY sdk/go/servicebus/go.mod sdk/go/servicebus/go.sum sdk/go/servicebus/
RUN go mod download

COPY . .
# Without cgo the binary is static and runs on an empty image. VCS stamping is
# off because .dockerignore leaves .git out.
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags='-s -w' -o /out/lucius ./cmd/lucius \
 && mkdir -p /out/data /out/tmp

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/lucius /lucius
# Empty directories that the unprivileged user may write to.
COPY --from=build --chown=65532:65532 /out/data /var/lib/lucius
COPY --from=build --chown=65532:65532 /out/tmp /tmp

USER 65532:65532
# `demo` writes to the current folder.
WORKDIR /var/lib/lucius
ENV LUCIUS_DATA_DIR=/var/lib/lucius \
    LUCIUS_PROTOCOLS_DIR=/etc/lucius/protocols
VOLUME /var/lib/lucius

# SIGTERM stops the server gracefully.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/lucius"]
CMD ["serve"]

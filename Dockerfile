# An image with only the program `leasehold`, linked statically. Copy from it:
#     COPY --from=leasehold /leasehold /usr/local/bin/
FROM rust:1-alpine AS build
RUN apk add --no-cache ca-certificates musl-dev
WORKDIR /leasehold
COPY . .
RUN cargo build --release --locked --package leasehold-cli --features tls

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /leasehold/target/release/leasehold /leasehold
ENTRYPOINT ["/leasehold"]

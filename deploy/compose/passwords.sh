#!/bin/sh
# Makes the passwords of postgres.yaml in ./secrets, once. Containers of several users read
# the files; on the host the folder is closed to others than its owner.
set -eu
mkdir -m 700 secrets
password() { head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }
password > secrets/postgres
for role in lucius_owner lucius_server; do
  echo "*:*:*:$role:$(password)" > "secrets/$role"
done
chmod 644 secrets/*

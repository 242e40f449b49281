// Package conformance holds the worker of every SDK to the same behaviour, on a real
// server behind a proxy that injects faults. Its README says what is expected; `make sdk`
// runs it.
package conformance

//go:generate ../typescript/with-tools openapi-typescript ../../api/openapi.yaml -o ../typescript/src/api.gen.ts

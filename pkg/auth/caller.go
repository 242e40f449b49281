package auth

import (
	"context"
	"slices"
)

// Origin says how a caller proved who it is.
type Origin string

// The origins.
const (
	// ByToken is a bearer token of the token file.
	ByToken Origin = "token"
	// ByJWT is a token that an OpenID Connect issuer signed.
	ByJWT Origin = "jwt"
	// ByCertificate is a client certificate.
	ByCertificate Origin = "certificate"
	// ByLoopback is no credential, on a server that needs none.
	ByLoopback Origin = "loopback"
)

// Caller is the sender of a request, with its grants. The zero value may do nothing.
// It is immutable and safe for concurrent use.
type Caller struct {
	name   string
	origin Origin
	grants []Grant
}

// NewCaller returns a caller, for tests and for other transports. The grants must be
// valid, and the caller takes ownership of them.
func NewCaller(name string, origin Origin, grants ...Grant) Caller {
	return Caller{name: name, origin: origin, grants: grants}
}

// loopback is the caller if nothing is configured: it may do everything.
var loopback = NewCaller("loopback", ByLoopback, everything()...)

func everything() []Grant {
	var grants []Grant
	for _, role := range Roles() {
		grants = append(grants, Grant{Role: role, All: true})
	}
	return grants
}

// Name returns the caller's name in logs, audit records and rate limits. The name of
// a JWT's subject begins with "oidc:", which no name in a token file does. Only the
// zero value's name is empty.
func (c Caller) Name() string { return c.name }

// Origin returns how the caller proved who it is.
func (c Caller) Origin() Origin { return c.origin }

// May reports whether the caller has the role for the tenant. The empty tenant means
// all tenants: only a caller with the role for all of them has it.
func (c Caller) May(role Role, tenant string) bool {
	return slices.ContainsFunc(c.grants, func(g Grant) bool { return g.covers(role, tenant) })
}

// MayServe reports whether the caller may claim and answer the steps of the
// service for the tenant. Use it as the predicate of a claim.
func (c Caller) MayServe(tenant, service string) bool {
	return slices.ContainsFunc(c.grants, func(g Grant) bool { return g.covers(Platform, tenant) && g.serves(service) })
}

// Has reports whether the caller has the role for any tenant.
func (c Caller) Has(role Role) bool {
	return slices.ContainsFunc(c.grants, func(g Grant) bool { return g.Role == role })
}

// Tenants returns the tenants for which the caller has the role, sorted, or all
// if it has the role for every tenant. The caller of the method owns the slice.
func (c Caller) Tenants(role Role) (tenants []string, all bool) {
	for _, g := range c.grants {
		if g.Role != role {
			continue
		}
		if g.All {
			return nil, true
		}
		tenants = append(tenants, g.Tenants...)
	}
	slices.Sort(tenants)
	return slices.Compact(tenants), false
}

// callerKey is the context key of the caller.
type callerKey struct{}

// WithCaller returns a context that carries the caller.
func WithCaller(ctx context.Context, caller Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf returns the context's caller, or one that may do nothing.
func CallerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

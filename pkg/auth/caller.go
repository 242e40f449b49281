package auth

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// Role is a kind of permission. Roles do not imply each other.
type Role string

// The roles.
const (
	Submit   Role = "submit"   // submit commands, and control their jobs
	Read     Role = "read"     // read jobs
	Platform Role = "platform" // execute steps: claim work and report on it
	Admin    Role = "admin"    // inspect the server and unblock what is stuck
)

// Roles returns all roles. The caller owns the slice.
func Roles() []Role { return []Role{Submit, Read, Platform, Admin} }

// Everyone stands for all tenants in a list of tenants.
const Everyone = "*"

// The limits of a grant.
const (
	MaxTenantID = 128  // the longest tenant id, in bytes, as in a command
	MaxListed   = 1000 // how many tenants or services a grant may list
)

// servicePattern matches the name of a service, as in a protocol file.
var servicePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Grant gives a role for some tenants. It is immutable once it is part of a
// [Caller].
type Grant struct {
	Role    Role     // Required.
	All     bool     // The role covers every tenant, including future ones.
	Tenants []string // The tenants if All is false. At least one is required then.
	// Services limits a platform caller to the steps of these services. Optional:
	// empty means all services. Must be empty for other roles.
	Services []string
}

// Validate reports the first fault.
func (g Grant) Validate() error {
	switch {
	case !slices.Contains(Roles(), g.Role):
		return fmt.Errorf("role is %q and must be %s", g.Role, oneOf(Roles()))
	case g.All && len(g.Tenants) > 0:
		return fmt.Errorf("tenants are both all and listed")
	case !g.All && len(g.Tenants) == 0:
		return fmt.Errorf("tenants must list at least one tenant, or be %q for all", Everyone)
	case len(g.Tenants) > MaxListed || len(g.Services) > MaxListed:
		return fmt.Errorf("more than %d tenants or services are listed", MaxListed)
	}
	for _, tenant := range g.Tenants {
		switch {
		case strings.TrimSpace(tenant) == "":
			return fmt.Errorf("tenant is empty or blank")
		case len(tenant) > MaxTenantID:
			return fmt.Errorf("tenant is %d bytes long; at most %d are allowed", len(tenant), MaxTenantID)
		case tenant == Everyone:
			return fmt.Errorf("tenant %q stands for all and cannot be one of a list", Everyone)
		}
	}
	if g.Role != Platform && len(g.Services) > 0 {
		return fmt.Errorf("services are only for the role %s", Platform)
	}
	for _, service := range g.Services {
		if !servicePattern.MatchString(service) {
			return fmt.Errorf("service is %q and must be 1 to 64 of the characters A-Z a-z 0-9 . _ -", service)
		}
	}
	return nil
}

// ParseGrant reads role:tenants[:services]. Tenants and services are
// separated by commas, and the tenants may be * for all, such as submit:tenant_a
// or platform:*:ocr,embed. A tenant whose id holds a comma or a colon can only be
// granted in a file. The error says what is wrong.
func ParseGrant(text string) (Grant, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return Grant{}, fmt.Errorf("grant is %q and must be role:tenants or role:tenants:services", text)
	}
	grant := Grant{Role: Role(parts[0])}
	if parts[1] == Everyone {
		grant.All = true
	} else {
		grant.Tenants = strings.Split(parts[1], ",")
	}
	if len(parts) == 3 {
		grant.Services = strings.Split(parts[2], ",")
	}
	if err := grant.Validate(); err != nil {
		return Grant{}, fmt.Errorf("grant %q: %w", text, err)
	}
	return grant, nil
}

// covers reports whether the grant gives the role for the tenant.
func (g Grant) covers(role Role, tenant string) bool {
	return g.Role == role && (g.All || tenant != "" && slices.Contains(g.Tenants, tenant))
}

// serves reports whether the grant covers the service.
func (g Grant) serves(service string) bool {
	return len(g.Services) == 0 || slices.Contains(g.Services, service)
}

// oneOf writes an alternative: a, b or c.
func oneOf(roles []Role) string {
	var text strings.Builder
	for i, role := range roles {
		switch {
		case i > 0 && i == len(roles)-1:
			text.WriteString(" or ")
		case i > 0:
			text.WriteString(", ")
		}
		text.WriteString(string(role))
	}
	return text.String()
}

// Origin says how a caller proved its identity.
type Origin string

// The origins.
const (
	ByToken       Origin = "token"       // a bearer token of the token file
	ByJWT         Origin = "jwt"         // a token that an OpenID Connect issuer signed
	ByCertificate Origin = "certificate" // a client certificate
	ByLocal       Origin = "local"       // no credential, on a server that needs none
	ByExpiry      Origin = "expiry"      // no caller: the server ended something at its time
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

// Name returns the caller's name in logs, audit records and rate limits. The name of
// a JWT's subject begins with "oidc:", which no name in a token file does. Only the
// zero value's name is empty.
func (c Caller) Name() string { return c.name }

// Origin returns how the caller proved its identity.
func (c Caller) Origin() Origin { return c.origin }

// Grants returns what the caller may do. The caller of the method owns the slice, but not
// the lists in it.
func (c Caller) Grants() []Grant { return slices.Clone(c.grants) }

// May reports whether the caller has the role for the tenant. The empty tenant means
// all tenants: only a caller with the role for all of them has it.
func (c Caller) May(role Role, tenant string) bool {
	return slices.ContainsFunc(c.grants, func(g Grant) bool { return g.covers(role, tenant) })
}

// MayServe reports whether the caller may claim and answer the steps of the
// service for the tenant.
func (c Caller) MayServe(tenant, service string) bool {
	return slices.ContainsFunc(c.grants, func(g Grant) bool { return g.covers(Platform, tenant) && g.serves(service) })
}

// Has reports whether the caller has the role for any tenant.
func (c Caller) Has(role Role) bool {
	return slices.ContainsFunc(c.grants, func(g Grant) bool { return g.Role == role })
}

// Reach is the work that a claim may take: of these tenants and these services. An
// empty list means all.
type Reach struct {
	Tenants  []string
	Services []string
}

// Reach returns what a claim of the caller may take if it names these services; no
// name means any service. Services that are not the caller's are left out. The caller
// of the method owns the lists.
//
// The error is a problem of code forbidden: for a caller without the role platform,
// and for one whose tenants differ between the services, because no single [Reach]
// covers them.
func (c Caller) Reach(named []string) (Reach, error) {
	var granted []string // The services that the platform grants name.
	every := false       // A grant is for every service.
	for _, g := range c.grants {
		if g.Role == Platform {
			granted = append(granted, g.Services...)
			every = every || len(g.Services) == 0
		}
	}
	slices.Sort(granted)
	granted = slices.Compact(granted)
	all := granted
	if every {
		all = append(slices.Clone(granted), "") // The empty name stands for all other services.
	}
	if len(all) == 0 {
		return Reach{}, apierror.Newf(apierror.Forbidden, "This requires the role %s.", Platform)
	}
	if reach, even := c.reachOf(all); even {
		if every {
			reach.Services = nil
		}
		return reach, nil
	}
	reach, even := c.reachOf(named)
	if !even || len(named) == 0 {
		return Reach{}, apierror.Newf(apierror.Forbidden,
			"The role platform covers different tenants for different services: claim for services with the same tenants.")
	}
	if len(reach.Services) == 0 { // The caller serves none of the named services.
		reach, _ = c.reachOf(granted[:1])
	}
	return reach, nil
}

// reachOf returns those of the services that the caller serves, and the tenants for
// which it does. It reports false if the tenants differ between services.
func (c Caller) reachOf(services []string) (reach Reach, even bool) {
	for _, service := range services {
		var tenants []string
		serves, all := false, false
		for _, g := range c.grants {
			if g.Role == Platform && g.serves(service) {
				tenants = append(tenants, g.Tenants...)
				serves, all = true, all || g.All
			}
		}
		if !serves {
			continue
		}
		slices.Sort(tenants)
		if tenants = slices.Compact(tenants); all {
			tenants = nil
		}
		if len(reach.Services) > 0 && !slices.Equal(tenants, reach.Tenants) {
			return Reach{}, false
		}
		reach.Tenants, reach.Services = tenants, append(reach.Services, service)
	}
	return reach, true
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

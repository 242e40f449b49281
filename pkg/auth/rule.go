package auth

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/problem"
)

// Scope says for which tenants an operation needs the role.
type Scope int

// The scopes.
const (
	// Public needs no credential.
	Public Scope = iota
	// Anywhere needs the role for any tenant: the answer belongs to no tenant.
	Anywhere
	// Named needs the role for the tenant that the request names in its body or query,
	// or for all tenants if it names none. Denied with forbidden.
	Named
	// Owned needs the role for the tenant of the object in the path, or for all
	// tenants if the object has none. Denied as if there were no such object.
	Owned
	// Narrowed needs the role for any tenant, and covers only the objects of the
	// caller's tenants.
	Narrowed
	// Everywhere needs the role for all tenants. Denied with forbidden.
	Everywhere
)

// String returns the scope's name in the documentation.
func (s Scope) String() string {
	return [...]string{"public", "any", "named", "owner", "own", "all"}[s]
}

// Rule says who may call one operation.
type Rule struct {
	// Operation is the operationId in the OpenAPI document.
	Operation string
	// Method and Path are those of the OpenAPI document.
	Method, Path string
	// Roles lists the roles of which the caller needs one; empty for [Public].
	Roles []Role
	// Scope says for which tenants the caller needs the role.
	Scope Scope
	// Audited says that each call goes into the audit log.
	Audited bool
}

// RuleOf returns the rule of an operation by its operationId.
func RuleOf(operation string) (Rule, bool) {
	return find(func(r Rule) bool { return r.Operation == operation })
}

// RuleFor returns the rule of an operation by its method and its path, with the
// parameters as the OpenAPI document has them: /v1/jobs/{jobId}:cancel.
func RuleFor(method, path string) (Rule, bool) {
	return find(func(r Rule) bool { return r.Method == method && r.Path == path })
}

func find(is func(Rule) bool) (Rule, bool) {
	i := slices.IndexFunc(rules, is)
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// Rules returns the rules of all operations, in the order of the OpenAPI
// document. The caller owns the slice.
func Rules() []Rule { return slices.Clone(rules) }

// Admit is the first check, before the request is read: it returns a problem of code
// forbidden if the caller may not call the operation for any tenant.
func (r Rule) Admit(c Caller) error {
	if r.Scope == Public || slices.ContainsFunc(r.Roles, func(role Role) bool { return r.scoped(c, role) }) {
		return nil
	}
	if r.Scope == Everywhere {
		return problem.Newf(problem.Forbidden, "This takes the role %s for all tenants.", oneOf(r.Roles))
	}
	return problem.Newf(problem.Forbidden, "This takes the role %s.", oneOf(r.Roles))
}

// scoped reports whether the caller has the role for enough tenants.
func (r Rule) scoped(c Caller, role Role) bool {
	if r.Scope == Everywhere {
		return c.May(role, "")
	}
	return c.Has(role)
}

// Allows reports whether the caller may call the operation for the tenant. The empty
// tenant means all. Answer a refused object as if it did not exist.
func (r Rule) Allows(c Caller, tenant string) bool {
	switch r.Scope {
	case Public:
		return true
	case Anywhere, Everywhere:
		return r.Admit(c) == nil
	default:
		return slices.ContainsFunc(r.Roles, func(role Role) bool { return c.May(role, tenant) })
	}
}

// AllowsStep is Allows for a step: a platform caller may be limited to services.
func (r Rule) AllowsStep(c Caller, tenant, service string) bool {
	return slices.ContainsFunc(r.Roles, func(role Role) bool {
		return c.May(role, tenant) && (role != Platform || c.MayServe(tenant, service))
	})
}

// Check is Allows for a tenant that the request names itself: it returns a
// problem of code forbidden.
func (r Rule) Check(c Caller, tenant string) error {
	switch {
	case r.Allows(c, tenant):
		return nil
	case tenant == "":
		return problem.Newf(problem.Forbidden, "This takes the role %s for all tenants; name a tenant_id of yours.", oneOf(r.Roles))
	default:
		return problem.Newf(problem.Forbidden, "This takes the role %s for the tenant.", oneOf(r.Roles))
	}
}

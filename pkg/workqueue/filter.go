package workqueue

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Filter narrows what a claim takes: a value matches where its list is empty
// or names it.
type Filter struct {
	Services  []string
	StepTypes []string
	Tenants   []string
	// Caller narrows it further, to what the caller may see at all.
	Caller Caller
	// held and heldTenant leave out what is paused.
	held       func(hint *ledger.Hint) bool
	heldTenant func(tenantID string) bool
}

// Caller is what somebody may see of the queue: the items of these tenants, and
// of these services. An empty list stands for all. See [Queue.As].
type Caller struct {
	Tenants  []string
	Services []string
}

// sees reports whether an item of that tenant and service is the caller's to
// know of.
func (c *Caller) sees(tenant, service string) bool {
	return listed(c.Tenants, tenant) && listed(c.Services, service)
}

// limited reports whether there is anything that the caller may not see.
func (c *Caller) limited() bool { return len(c.Tenants)+len(c.Services) > 0 }

// matches reports whether the filter wants work of that kind.
func (f *Filter) matches(k ledger.WorkKind) bool {
	return listed(f.Services, k.Service) && listed(f.StepTypes, k.StepType) && listed(f.Caller.Services, k.Service)
}

// admits reports whether the filter wants work of that tenant.
func (f *Filter) admits(tenant string) bool {
	return listed(f.Tenants, tenant) && listed(f.Caller.Tenants, tenant) && !f.heldTenant(tenant)
}

// fits reports whether the filter admits the hint's item, and nothing holds it back.
func (f *Filter) fits(hint *ledger.Hint) bool {
	return f.matches(hint.Kind) && f.admits(hint.TenantID) && !f.held(hint)
}

// tenants are the tenants that the filter names, each once, nil where it takes
// those of any.
func (f *Filter) tenants() []string {
	named := f.Tenants
	if len(named) == 0 {
		named = f.Caller.Tenants
	}
	if len(named) == 0 {
		return nil
	}
	kept := slices.DeleteFunc(slices.Clone(named), func(tenant string) bool { return !f.admits(tenant) })
	slices.Sort(kept)
	return slices.Compact(kept)
}

// any reports whether the filter takes the work of any tenant.
func (f *Filter) any() bool { return len(f.Tenants) == 0 && len(f.Caller.Tenants) == 0 }

// listed reports whether the list is empty or has the value.
func listed(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }

package auth

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/problem"
)

// Reach is the work that a claim may take: of these tenants and these services. An
// empty list means all.
type Reach struct {
	Tenants  []string
	Services []string
}

// errUneven is returned if no single [Reach] covers what the caller may claim.
var errUneven = problem.Newf(problem.Forbidden,
	"The role platform covers different tenants for different services: claim for services with the same tenants.")

// Reach returns what a claim of the caller may take if it names these services; no
// name means any service. Services that are not the caller's are left out. The caller
// of the method owns the lists.
//
// The error is a problem of code forbidden: for a caller without the role platform,
// and for one whose tenants differ between the services.
func (c Caller) Reach(named []string) (Reach, error) {
	own, every := c.services()
	if len(own) == 0 && !every {
		return Reach{}, problem.Newf(problem.Forbidden, "This takes the role %s.", Platform)
	}
	all := own
	if every {
		all = append(slices.Clone(own), "") // The empty name stands for all other services.
	}
	if tenants, _, even := c.shared(all); even {
		if every {
			own = nil
		}
		return Reach{Tenants: tenants.listed, Services: own}, nil
	}
	tenants, served, even := c.shared(named)
	switch {
	case !even || len(named) == 0:
		return Reach{}, errUneven
	case len(served) == 0: // The caller serves none of the named services.
		return Reach{Tenants: c.tenantsOf(own[0]).listed, Services: own[:1]}, nil
	default:
		return Reach{Tenants: tenants.listed, Services: served}, nil
	}
}

// shared returns those of the services that the caller serves, and the tenants for
// which it does. It reports false if the tenants differ between services.
func (c Caller) shared(services []string) (tenants tenantSet, served []string, even bool) {
	for _, service := range services {
		found := c.tenantsOf(service)
		if found.empty() {
			continue
		}
		if len(served) > 0 && !found.equal(tenants) {
			return tenantSet{}, nil, false
		}
		tenants, served = found, append(served, service)
	}
	return tenants, served, true
}

// services returns the services that the caller's platform grants name, and whether
// there is a grant for every service.
func (c Caller) services() (named []string, every bool) {
	for _, g := range c.grants {
		if g.Role == Platform {
			named = append(named, g.Services...)
			every = every || len(g.Services) == 0
		}
	}
	slices.Sort(named)
	return slices.Compact(named), every
}

// tenantSet is all tenants, or the listed ones.
type tenantSet struct {
	all    bool
	listed []string // sorted, each once
}

func (s tenantSet) empty() bool { return !s.all && len(s.listed) == 0 }

func (s tenantSet) equal(other tenantSet) bool {
	return s.all == other.all && slices.Equal(s.listed, other.listed)
}

// tenantsOf returns the tenants for which the caller serves the service.
func (c Caller) tenantsOf(service string) tenantSet {
	var found tenantSet
	for _, g := range c.grants {
		if g.Role != Platform || !g.serves(service) {
			continue
		}
		if g.All {
			return tenantSet{all: true}
		}
		found.listed = append(found.listed, g.Tenants...)
	}
	slices.Sort(found.listed)
	found.listed = slices.Compact(found.listed)
	return found
}

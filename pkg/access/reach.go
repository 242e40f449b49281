package access

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/problem"
)

// Reach is the work that a claim may take: of these tenants, and of these
// services. An empty list stands for all.
type Reach struct {
	Tenants  []string
	Services []string
}

// errUneven is returned where no one [Reach] covers what may be claimed.
var errUneven = problem.Newf(problem.Forbidden,
	"The role platform is for other tenants from service to service: claim for services that it has for the same tenants.")

// Reach returns what a claim of the caller may take when it names these services,
// or none for any. The claim is still narrowed by what it names: work of other
// services than the caller's is not there. The caller of the method owns the
// lists.
//
// The error is a problem of code forbidden: for a caller that is not a platform
// one, and for one whose tenants differ from one of the services to the next.
func (c Caller) Reach(named []string) (Reach, error) {
	own, every := c.services()
	if len(own) == 0 && !every {
		return Reach{}, problem.Newf(problem.Forbidden, "This takes the role %s.", Platform)
	}
	all := own
	if every {
		all = append(slices.Clone(own), "") // No service is called so: it stands for the rest.
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
	case len(served) == 0: // Any work of the caller's is none that the claim names.
		return Reach{Tenants: c.tenantsOf(own[0]).listed, Services: own[:1]}, nil
	default:
		return Reach{Tenants: tenants.listed, Services: served}, nil
	}
}

// shared returns the tenants for which the caller does the steps of each of the
// services that it serves at all, and which those are. It reports false where
// they differ.
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

// services are those that the caller's platform grants name, and whether there
// is a grant for every service.
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

// tenantSet is all tenants, or those that are listed.
type tenantSet struct {
	all    bool
	listed []string // sorted, each once
}

func (s tenantSet) empty() bool { return !s.all && len(s.listed) == 0 }

func (s tenantSet) equal(other tenantSet) bool {
	return s.all == other.all && slices.Equal(s.listed, other.listed)
}

// tenantsOf are the tenants for which the caller does the service's steps.
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

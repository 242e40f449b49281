package auth

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Role is a kind of permission. Roles do not imply each other.
type Role string

// The roles.
const (
	// Submit allows submitting commands, and controlling their jobs.
	Submit Role = "submit"
	// Read allows reading jobs.
	Read Role = "read"
	// Platform allows executing steps: claiming work and reporting on it.
	Platform Role = "platform"
	// Admin allows inspecting the server and unblocking what is stuck.
	Admin Role = "admin"
)

// Roles returns all roles. The caller owns the slice.
func Roles() []Role { return []Role{Submit, Read, Platform, Admin} }

// Everyone stands for all tenants in a list of tenants.
const Everyone = "*"

// The limits of a grant.
const (
	// MaxTenantID is the longest tenant id, in bytes, as in a command.
	MaxTenantID = 128
	// MaxListed is how many tenants or services a grant may list.
	MaxListed = 1000
)

// servicePattern matches the name of a service, as in a protocol file.
var servicePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Grant gives a role for some tenants. It is immutable once it is part of a
// [Caller].
type Grant struct {
	// Role is the granted role. Required.
	Role Role
	// All grants the role for every tenant, also for future ones.
	All bool
	// Tenants are the tenants if All is false. At least one is required then.
	Tenants []string
	// Services limits a platform caller to the steps of these services. Optional:
	// empty means all services. Must be empty for other roles.
	Services []string
}

// Validate reports the first fault.
func (g Grant) Validate() error {
	if !slices.Contains(Roles(), g.Role) {
		return fmt.Errorf("role is %q and must be %s", g.Role, oneOf(Roles()))
	}
	if g.All && len(g.Tenants) > 0 {
		return fmt.Errorf("tenants are both all and listed")
	}
	if !g.All && len(g.Tenants) == 0 {
		return fmt.Errorf("tenants must list at least one tenant, or be %q for all", Everyone)
	}
	if len(g.Tenants) > MaxListed || len(g.Services) > MaxListed {
		return fmt.Errorf("more than %d tenants or services are listed", MaxListed)
	}
	for _, tenant := range g.Tenants {
		if err := checkTenant(tenant); err != nil {
			return err
		}
	}
	if g.Role != Platform && len(g.Services) > 0 {
		return fmt.Errorf("services are only for the role %s", Platform)
	}
	for _, service := range g.Services {
		if err := checkService(service); err != nil {
			return err
		}
	}
	return nil
}

func checkTenant(tenant string) error {
	switch {
	case strings.TrimSpace(tenant) == "":
		return fmt.Errorf("tenant is empty or blank")
	case len(tenant) > MaxTenantID:
		return fmt.Errorf("tenant is %d bytes long; at most %d are allowed", len(tenant), MaxTenantID)
	case tenant == Everyone:
		return fmt.Errorf("tenant %q stands for all and cannot be one of a list", Everyone)
	}
	return nil
}

func checkService(service string) error {
	if !servicePattern.MatchString(service) {
		return fmt.Errorf("service is %q and must be 1 to 64 of the characters A-Z a-z 0-9 . _ -", service)
	}
	return nil
}

// ParseGrant reads role:tenants[:services], where tenants and services are
// separated by commas and the tenants may be * for all, such as submit:tenant_a
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

// String writes the grant as [ParseGrant] reads it.
func (g Grant) String() string {
	tenants := Everyone
	if !g.All {
		tenants = strings.Join(g.Tenants, ",")
	}
	text := string(g.Role) + ":" + tenants
	if len(g.Services) > 0 {
		text += ":" + strings.Join(g.Services, ",")
	}
	return text
}

// covers reports whether the grant gives the role for the tenant.
func (g Grant) covers(role Role, tenant string) bool {
	return g.Role == role && (g.All || tenant != "" && slices.Contains(g.Tenants, tenant))
}

// serves reports whether the grant covers the service.
func (g Grant) serves(service string) bool {
	return len(g.Services) == 0 || slices.Contains(g.Services, service)
}

// oneOf lists words as people do: a, b or c.
func oneOf[T ~string](words []T) string {
	var text strings.Builder
	for i, word := range words {
		switch {
		case i > 0 && i == len(words)-1:
			text.WriteString(" or ")
		case i > 0:
			text.WriteString(", ")
		}
		text.WriteString(string(word))
	}
	return text.String()
}

package console

import (
	"net/http"
	"slices"

	"github.com/lucius-project/lucius/api"
)

// tenants returns the tenants for which the user has the role; "*" is all of them.
func (r *request) tenants(role api.GrantRole) (names []string) {
	for i := range r.Who.Grants {
		if r.Who.Grants[i].Role == role {
			names = append(names, r.Who.Grants[i].Tenants...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// tenantFilter is the choice of a list's tenant.
type tenantFilter struct {
	// Value is empty for all tenants.
	Value string
	// Choices are the tenants of a user who must choose one; empty if the user may see all.
	Choices []string
}

// tenant returns the tenant that the request names. Without one, a user who may not see all
// tenants gets the first of theirs.
func (r *request) tenant(role api.GrantRole) tenantFilter {
	f := tenantFilter{Value: r.FormValue("tenant_id")}
	if !r.May(role, "") {
		if f.Choices = r.tenants(role); f.Value == "" && len(f.Choices) > 0 {
			f.Value = f.Choices[0]
		}
	}
	return f
}

// missingRole returns the page for a user who lacks the role for it.
func missingRole(title string, role api.GrantRole) view {
	return view{Title: title, Template: "missingrole", Data: role}
}

// more returns the URL of a list's next page, empty on the last.
func (r *request) more(token string) string {
	if token == "" {
		return ""
	}
	query := r.URL.Query()
	query.Set("page_token", token)
	return r.URL.EscapedPath() + "?" + query.Encode()
}

// pageToken returns the token of the page that the request asks for, nil for the first.
func (r *request) pageToken() *api.PageToken { return optional(r.FormValue("page_token")) }

// optional returns a parameter for the API, nil for the zero value.
func optional[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// isMissing reports whether the API answered that there is no such thing.
func isMissing(err error) bool { return hasStatus(err, http.StatusNotFound) }

package auth_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

func TestParseGrant(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]auth.Grant{
		"submit:tenant_a":          {Role: auth.Submit, Tenants: []string{"tenant_a"}},
		"read:tenant_a,tenant b":   {Role: auth.Read, Tenants: []string{"tenant_a", "tenant b"}},
		"admin:*":                  {Role: auth.Admin, All: true},
		"platform:*:ocr,embed":     {Role: auth.Platform, All: true, Services: []string{"ocr", "embed"}},
		"platform:tenant_a:ocr.v2": {Role: auth.Platform, Tenants: []string{"tenant_a"}, Services: []string{"ocr.v2"}},
	} {
		got, err := auth.ParseGrant(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
	}
}

func TestParseGrant_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("t", auth.MaxTenantID+1)
	for text, want := range map[string]string{
		"":                        "must be role:tenants",
		"submit":                  "must be role:tenants",
		"submit:a:b:c":            "must be role:tenants",
		"chef:*":                  `role is "chef" and must be submit, read, platform or admin`,
		"Admin:*":                 "must be submit",
		"submit:":                 "tenant is empty",
		"submit:a,,b":             "tenant is empty",
		"submit:a, ":              "tenant is empty",
		"submit:a,*":              "cannot be one of a list",
		"submit:" + long:          "at most 128",
		"submit:*:ocr":            "services are only for the role platform",
		"platform:*:":             `service is ""`,
		"platform:*:ocr,em bed":   `service is "em bed"`,
		"read:" + many("t", 1001): "more than 1000",
	} {
		if _, err := auth.ParseGrant(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: answered %v, want %q", text, err, want)
		}
	}
	both := auth.Grant{Role: auth.Read, All: true, Tenants: []string{"a"}}
	if none := (auth.Grant{Role: auth.Read}); both.Validate() == nil || none.Validate() == nil {
		t.Error("a grant for all and some, or for none, is valid")
	}
}

// many is n texts with commas between them.
func many(text string, n int) string {
	return strings.TrimSuffix(strings.Repeat(text+",", n), ",")
}

func TestCaller_May(t *testing.T) {
	t.Parallel()
	caller := auth.NewCaller("ci", auth.ByToken, grants(t, "submit:a,b", "read:*", "platform:a:ocr", "platform:b")...)
	for _, test := range []struct {
		role   auth.Role
		tenant string
		want   bool
	}{
		{auth.Submit, "a", true},
		{auth.Submit, "b", true},
		{auth.Submit, "c", false},
		{auth.Submit, "", false},
		{auth.Submit, "A", false},
		{auth.Submit, "*", false},
		{auth.Read, "c", true},
		{auth.Read, "", true},
		{auth.Admin, "a", false},
		{auth.Admin, "", false},
		{"", "a", false},
	} {
		if got := caller.May(test.role, test.tenant); got != test.want {
			t.Errorf("May(%q, %q) is %t", test.role, test.tenant, got)
		}
	}
	if !caller.Has(auth.Platform) || caller.Has(auth.Admin) {
		t.Error("Has is wrong")
	}
}

func TestCaller_MayServe(t *testing.T) {
	t.Parallel()
	caller := auth.NewCaller("w", auth.ByToken, grants(t, "platform:a:ocr,embed", "platform:b", "read:*")...)
	for _, test := range []struct {
		tenant, service string
		want            bool
	}{
		{"a", "ocr", true},
		{"a", "embed", true},
		{"a", "index", false},
		{"a", "", false},
		{"b", "index", true},
		{"c", "ocr", false},
		{"", "ocr", false},
	} {
		if got := caller.MayServe(test.tenant, test.service); got != test.want {
			t.Errorf("MayServe(%q, %q) is %t", test.tenant, test.service, got)
		}
	}
}

func TestContext_CarriesTheCaller(t *testing.T) {
	t.Parallel()
	ctx := auth.WithCaller(t.Context(), auth.NewCaller("ci", auth.ByJWT, grants(t, "read:a")...))
	if caller := auth.CallerOf(ctx); caller.Name() != "ci" || caller.Origin() != auth.ByJWT || !caller.May(auth.Read, "a") {
		t.Errorf("the context has %+v", caller)
	}
	if anonymous := auth.CallerOf(t.Context()); anonymous.Name() != "" || anonymous.Has(auth.Read) {
		t.Errorf("a context without a caller has %+v", anonymous)
	}
}

// grants reads grants that are valid.
func grants(t testing.TB, texts ...string) []auth.Grant {
	t.Helper()
	var list []auth.Grant
	for _, text := range texts {
		grant := musttest.Make(t, auth.ParseGrant, text)
		list = append(list, grant)
	}
	return list
}

func TestCaller_Reach(t *testing.T) {
	t.Parallel()
	type reach = auth.Reach
	for _, test := range []struct {
		name   string
		grants []string
		named  []string
		want   reach
		code   apierror.Code
	}{
		{"everything", []string{"platform:*"}, nil, reach{}, ""},
		{"everything, of one service", []string{"platform:*"}, []string{"ocr"}, reach{}, ""},
		{"some tenants", []string{"platform:b,a"}, nil, reach{Tenants: []string{"a", "b"}}, ""},
		{"one service of all tenants", []string{"platform:*:ocr"}, nil, reach{Services: []string{"ocr"}}, ""},
		{
			"services in two grants", []string{"platform:a:ocr", "platform:a:embed"}, nil,
			reach{[]string{"a"}, []string{"embed", "ocr"}}, "",
		},
		{"tenants in two grants", []string{"platform:a:ocr", "platform:b:ocr"}, nil, reach{[]string{"a", "b"}, []string{"ocr"}}, ""},
		{"a grant within another", []string{"platform:*", "platform:a:ocr"}, nil, reach{}, ""},
		{"another service is not there", []string{"platform:a:ocr"}, []string{"embed"}, reach{[]string{"a"}, []string{"ocr"}}, ""},
		{"of two one is not there", []string{"platform:a:ocr"}, []string{"embed", "ocr"}, reach{[]string{"a"}, []string{"ocr"}}, ""},
		{"uneven", []string{"platform:a:ocr", "platform:b:embed"}, nil, reach{}, apierror.Forbidden},
		{
			"uneven, and one is named", []string{"platform:a:ocr", "platform:b:embed"}, []string{"embed"},
			reach{[]string{"b"}, []string{"embed"}}, "",
		},
		{"uneven, and both are named", []string{"platform:a:ocr", "platform:b:embed"}, []string{"embed", "ocr"}, reach{}, apierror.Forbidden},
		{"uneven with the rest", []string{"platform:a", "platform:b:ocr"}, nil, reach{}, apierror.Forbidden},
		{
			"uneven with the rest, and one is named", []string{"platform:a", "platform:b:ocr"}, []string{"ocr"},
			reach{[]string{"a", "b"}, []string{"ocr"}}, "",
		},
		{
			"uneven with the rest, and one of the rest is named", []string{"platform:a", "platform:b:ocr"}, []string{"embed"},
			reach{[]string{"a"}, []string{"embed"}}, "",
		},
		{
			"uneven, and another is named", []string{"platform:a:ocr", "platform:b:embed"}, []string{"other"},
			reach{[]string{"b"}, []string{"embed"}}, "",
		},
		{"no platform", []string{"admin:*"}, nil, reach{}, apierror.Forbidden},
		{"no platform, and one is named", []string{"admin:*"}, []string{"ocr"}, reach{}, apierror.Forbidden},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			caller := auth.NewCaller("c", auth.ByToken, grants(t, test.grants...)...)
			got, err := caller.Reach(test.named)
			if (err != nil) != (test.code != "") || err != nil && apierror.From(err).Code != test.code {
				t.Fatalf("answered %v, want %q", err, test.code)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// For any grants and any named services, a claim takes nothing that the
// caller may not do, and never asks for everything by naming nothing.
func TestCaller_ReachIsNeverMoreThanTheGrants(t *testing.T) {
	t.Parallel()
	tenants, services := []string{"a", "b", "c"}, []string{"ocr", "embed", "other"}
	all := []string{"platform:a", "platform:b:ocr", "platform:a,b:embed", "platform:*:ocr", "platform:c:ocr,embed", "read:*"}
	for picked := range 1 << len(all) {
		var some []string
		for i, grant := range all {
			if picked&(1<<i) != 0 {
				some = append(some, grant)
			}
		}
		caller := auth.NewCaller("c", auth.ByToken, grants(t, some...)...)
		for _, named := range [][]string{nil, {"ocr"}, {"embed"}, {"other"}, {"ocr", "embed"}, {"other", "ocr"}} {
			reach, err := caller.Reach(named)
			if err != nil {
				continue
			}
			for _, tenant := range tenants {
				for _, service := range services {
					claimed := has(reach.Tenants, tenant) && has(reach.Services, service) && has(named, service)
					if may := caller.MayServe(tenant, service); claimed && !may || may && has(named, service) && !claimed {
						t.Error(fmt.Sprint(some, " naming ", named, ": ", service, " of ", tenant, " is claimed: ", claimed))
					}
				}
			}
		}
	}
}

// has is how the queue reads a list.
func has(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }

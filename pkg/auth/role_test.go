package auth_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
		if got.String() != text {
			t.Errorf("%s is written as %s", text, got)
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

func TestCaller_Tenants(t *testing.T) {
	t.Parallel()
	caller := auth.NewCaller("ci", auth.ByToken, grants(t, "submit:b,a", "submit:c,a", "read:a", "read:*")...)
	submit, all := caller.Tenants(auth.Submit)
	if diff := cmp.Diff([]string{"a", "b", "c"}, submit); diff != "" || all {
		t.Errorf("submit for all: %t, tenants (-want +got):\n%s", all, diff)
	}
	if read, all := caller.Tenants(auth.Read); read != nil || !all {
		t.Errorf("read: %v, for all: %t", read, all)
	}
	if admin, all := caller.Tenants(auth.Admin); len(admin) > 0 || all {
		t.Errorf("admin: %v, for all: %t", admin, all)
	}
}

func TestContext_CarriesTheCaller(t *testing.T) {
	t.Parallel()
	ctx := auth.WithCaller(t.Context(), auth.NewCaller("ci", auth.ByJWT, grants(t, "read:a")...))
	if caller := auth.CallerOf(ctx); caller.Name() != "ci" || caller.Origin() != auth.ByJWT || !caller.May(auth.Read, "a") {
		t.Errorf("the context has %+v", caller)
	}
	if nobody := auth.CallerOf(t.Context()); nobody.Name() != "" || nobody.Has(auth.Read) {
		t.Errorf("a context without a caller has %+v", nobody)
	}
}

// grants reads grants that are valid.
func grants(t testing.TB, texts ...string) []auth.Grant {
	t.Helper()
	var list []auth.Grant
	for _, text := range texts {
		grant, err := auth.ParseGrant(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, grant)
	}
	return list
}

package auth_test

import (
	"flag"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

var update = flag.Bool("update", false, "rewrite the table in docs/run/access.md")

const (
	document = "../../api/openapi.yaml"
	guide    = "../../docs/run/access.md"
)

// operations returns "operationId METHOD path" of the OpenAPI document, in its order.
func operations(t *testing.T) []string {
	t.Helper()
	text := musttest.ReadFile(t, document)
	var found []string
	var path, method string
	line := regexp.MustCompile(`(?m)^(?:  (/.*):|    ([a-z]+):|      operationId: (\w+))$`)
	for _, match := range line.FindAllStringSubmatch(string(text), -1) {
		switch {
		case match[1] != "":
			path = match[1]
		case match[2] != "":
			method = strings.ToUpper(match[2])
		default:
			found = append(found, match[3]+" "+method+" "+path)
		}
	}
	if len(found) != strings.Count(string(text), "operationId:") || len(found) < 30 {
		t.Fatalf("%d operations were found in %s: does the test still read it?", len(found), document)
	}
	return found
}

// Every endpoint needs a rule: without one it would be open to no caller, or to all.
func TestEveryOperationHasOneRule(t *testing.T) {
	t.Parallel()
	var got []string
	for _, rule := range auth.Rules() {
		got = append(got, rule.Operation+" "+rule.Method+" "+rule.Path)
	}
	if diff := cmp.Diff(operations(t), got); diff != "" {
		t.Errorf("operations of %s and rules (-want +got):\n%s", document, diff)
	}
}

func TestEveryRuleIsConsistent(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, rule := range auth.Rules() {
		if seen[rule.Operation] {
			t.Errorf("%s has two rules", rule.Operation)
		}
		seen[rule.Operation] = true
		if (rule.Scope == auth.Public) != (len(rule.Roles) == 0) {
			t.Errorf("%s is %s with the roles %v", rule.Operation, rule.Scope, rule.Roles)
		}
		if slices.ContainsFunc(rule.Roles, func(r auth.Role) bool { return !slices.Contains(auth.Roles(), r) }) {
			t.Errorf("%s has the unknown role among %v", rule.Operation, rule.Roles)
		}
		if strings.Contains(rule.Path, "{") && rule.Scope != auth.Owned {
			t.Errorf("%s is %s: an operation on an object is its owner's", rule.Path, rule.Scope)
		}
		if strings.HasPrefix(rule.Path, "/v1/") && rule.Scope == auth.Public {
			t.Errorf("%s is public", rule.Path)
		}
		operator := rule.Method != http.MethodGet && slices.Contains(rule.Roles, auth.Admin)
		if operator && !rule.Audited || rule.Method == http.MethodGet && rule.Audited {
			t.Errorf("%s %s: audited is %t", rule.Method, rule.Path, rule.Audited)
		}
	}
}

func TestRuleFor(t *testing.T) {
	t.Parallel()
	for _, rule := range auth.Rules() {
		if found, ok := auth.RuleFor(rule.Method, rule.Path); !ok || found.Operation != rule.Operation {
			t.Errorf("%s is found as %+v", rule.Operation, found)
		}
	}
	if _, ok := auth.RuleFor(http.MethodDelete, "/v1/jobs"); ok {
		t.Error("there is a rule for another method")
	}
}

// ruleOf returns the rule of an operation.
func ruleOf(t *testing.T, operation string) auth.Rule {
	t.Helper()
	i := slices.IndexFunc(auth.Rules(), func(r auth.Rule) bool { return r.Operation == operation })
	if i < 0 {
		t.Fatalf("%s has no rule", operation)
	}
	return auth.Rules()[i]
}

func TestRule_ByScope(t *testing.T) {
	t.Parallel()
	anonymous := auth.Caller{}
	bound := auth.NewCaller("bound", auth.ByToken, grants(t, "read:a", "admin:a", "submit:a", "platform:a:ocr")...)
	all := auth.NewCaller("all", auth.ByToken, grants(t, "read:*", "admin:*", "submit:*", "platform:*")...)
	other := auth.NewCaller("other", auth.ByToken, grants(t, "platform:*")...)
	for _, test := range []struct {
		operation string
		caller    auth.Caller
		admitted  bool
		a, b, any bool // what is allowed for tenant a, tenant b and all tenants
	}{
		{"getHealth", anonymous, true, true, true, true},
		{"submitCommand", anonymous, false, false, false, false},
		{"submitCommand", other, false, false, false, false},
		{"submitCommand", bound, true, true, false, false},
		{"submitCommand", all, true, true, true, true},
		{"getJob", bound, true, true, false, false},
		{"getJob", other, false, false, false, false},
		{"getWork", other, true, true, true, true},
		{"getWork", bound, true, true, false, false},
		{"claimWork", bound, true, true, false, false},
		{"listPauses", bound, true, true, false, false},
		{"listPauses", all, true, true, true, true},
		{"listProtocols", anonymous, false, false, false, false},
		{"listProtocols", bound, true, true, true, true},
		{"getMetrics", bound, false, false, false, false},
		{"getMetrics", all, true, true, true, true},
		{"listStuck", bound, false, false, false, false},
		{"listAuditTrail", bound, false, false, false, false},
		{"listServices", bound, false, false, false, false},
		{"listWorkers", bound, true, true, false, false},
		{"listWorkers", other, false, false, false, false},
		{"getOverview", all, true, true, true, true},
	} {
		rule := ruleOf(t, test.operation)
		if err := rule.Admit(test.caller); test.admitted != (err == nil) || err != nil && apierror.From(err).Code != apierror.Forbidden {
			t.Errorf("%s admits %q: %v", test.operation, test.caller.Name(), err)
		}
		for tenant, want := range map[string]bool{"a": test.a, "b": test.b, "": test.any} {
			if got := rule.Allows(test.caller, tenant); got != want {
				t.Errorf("%s allows %q for %q: %t", test.operation, test.caller.Name(), tenant, got)
			}
			if err := rule.Check(test.caller, tenant); want != (err == nil) || err != nil && apierror.From(err).Code != apierror.Forbidden {
				t.Errorf("%s checks %q for %q: %v", test.operation, test.caller.Name(), tenant, err)
			}
		}
	}
}

func TestRule_AllowsStep(t *testing.T) {
	t.Parallel()
	bound := auth.NewCaller("bound", auth.ByToken, grants(t, "platform:a:ocr")...)
	reader := auth.NewCaller("reader", auth.ByToken, grants(t, "platform:a:ocr", "read:a")...)
	complete, show := ruleOf(t, "completeWork"), ruleOf(t, "getWork")
	for _, test := range []struct {
		rule            auth.Rule
		caller          auth.Caller
		tenant, service string
		want            bool
	}{
		{complete, bound, "a", "ocr", true},
		{complete, bound, "a", "embed", false},
		{complete, bound, "b", "ocr", false},
		{complete, reader, "a", "embed", false},
		{show, bound, "a", "ocr", true},
		{show, bound, "a", "embed", false},
		{show, reader, "a", "embed", true},
		{show, reader, "b", "ocr", false},
	} {
		if got := test.rule.AllowsStep(test.caller, test.tenant, test.service); got != test.want {
			t.Errorf("%s allows %s for %s of %s: %t", test.rule.Operation, test.caller.Name(), test.service, test.tenant, got)
		}
	}
}

// table returns the policy as the guide shows it.
func table() string {
	var out strings.Builder
	out.WriteString("| endpoint | operation |")
	for _, role := range auth.Roles() {
		fmt.Fprintf(&out, " %s |", role)
	}
	out.WriteString(" tenant | audit |\n|---|---|" + strings.Repeat(":-:|", len(auth.Roles())) + "---|:-:|\n")
	mark := map[bool]string{true: " ✓ |", false: " |"}
	for _, rule := range auth.Rules() {
		fmt.Fprintf(&out, "| `%s %s` | `%s` |", rule.Method, rule.Path, rule.Operation)
		for _, role := range auth.Roles() {
			out.WriteString(mark[slices.Contains(rule.Roles, role)])
		}
		fmt.Fprintf(&out, " %s |%s\n", rule.Scope, mark[rule.Audited])
	}
	return out.String()
}

func TestTheGuideShowsThePolicy(t *testing.T) {
	t.Parallel()
	text := musttest.ReadFile(t, guide)
	const from, to = "<!-- policy: go test ./pkg/auth -run Guide -update -->\n\n", "\n<!-- end of policy -->"
	before, rest, found := strings.Cut(string(text), from)
	shown, after, ended := strings.Cut(rest, to)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", guide)
	}
	if *update {
		musttest.WriteFile(t, guide, before+from+table()+to+after)
		return
	}
	if diff := cmp.Diff(table(), shown); diff != "" {
		t.Errorf("the table in %s (-want +got):\n%s", guide, diff)
	}
}

func TestTheGuidesTokenFileIsValid(t *testing.T) {
	t.Parallel()
	text := musttest.ReadFile(t, guide)
	examples := regexp.MustCompile("(?ms)^```yaml\n(version: .*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(examples) == 0 {
		t.Fatal("the guide has no token file")
	}
	for _, example := range examples {
		if _, err := auth.OpenFile(put(t, "tokens.yaml", example[1])); err != nil {
			t.Error(err)
		}
	}
}

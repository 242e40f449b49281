package auth_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/problem"
)

func TestCaller_Reach(t *testing.T) {
	t.Parallel()
	type reach = auth.Reach
	for _, test := range []struct {
		name   string
		grants []string
		named  []string
		want   reach
		code   problem.Code
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
		{"uneven", []string{"platform:a:ocr", "platform:b:embed"}, nil, reach{}, problem.Forbidden},
		{
			"uneven, and one is named", []string{"platform:a:ocr", "platform:b:embed"}, []string{"embed"},
			reach{[]string{"b"}, []string{"embed"}}, "",
		},
		{"uneven, and both are named", []string{"platform:a:ocr", "platform:b:embed"}, []string{"embed", "ocr"}, reach{}, problem.Forbidden},
		{"uneven with the rest", []string{"platform:a", "platform:b:ocr"}, nil, reach{}, problem.Forbidden},
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
		{"no platform", []string{"admin:*"}, nil, reach{}, problem.Forbidden},
		{"no platform, and one is named", []string{"admin:*"}, []string{"ocr"}, reach{}, problem.Forbidden},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			caller := auth.NewCaller("c", auth.ByToken, grants(t, test.grants...)...)
			got, err := caller.Reach(test.named)
			if (err != nil) != (test.code != "") || err != nil && problem.From(err).Code != test.code {
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

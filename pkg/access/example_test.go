package access_test

import (
	"fmt"
	"net/http"

	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/problem"
)

// How a transport asks, for an operation on a job.
func ExampleRule() {
	getJob, _ := access.RuleFor(http.MethodGet, "/v1/jobs/{jobId}")
	caller := access.NewCaller("dashboard", access.ByToken, access.Grant{Role: access.Read, Tenants: []string{"tenant_a"}})

	fmt.Println(getJob.Admit(caller)) // Before the job is looked for.
	for _, owner := range []string{"tenant_a", "tenant_b"} {
		fmt.Println(owner, getJob.Allows(caller, owner)) // Where not: job_not_found.
	}

	submit, _ := access.RuleOf("submitCommand")
	fmt.Println(problem.From(submit.Admit(caller)).Detail)
	// Output:
	// <nil>
	// tenant_a true
	// tenant_b false
	// This takes the role submit.
}

func ExampleParseGrant() {
	grant, err := access.ParseGrant("platform:*:ocr,embed")
	fmt.Println(grant.Role, grant.All, grant.Services, err)
	_, err = access.ParseGrant("chef:*")
	fmt.Println(err)
	// Output:
	// platform true [ocr embed] <nil>
	// grant "chef:*": role is "chef" and must be submit, read, platform or admin
}

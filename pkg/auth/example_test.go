package auth_test

import (
	"fmt"
	"net/http"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

// A transport checks an operation on a job.
func ExampleRule() {
	getJob, _ := auth.RuleFor(http.MethodGet, "/v1/jobs/{jobId}")
	caller := auth.NewCaller("dashboard", auth.ByToken, auth.Grant{Role: auth.Read, Tenants: []string{"tenant_a"}})

	fmt.Println(getJob.Admit(caller)) // Before the job is read.
	for _, owner := range []string{"tenant_a", "tenant_b"} {
		fmt.Println(owner, getJob.Allows(caller, owner)) // If not: job_not_found.
	}

	submit, _ := auth.RuleFor(http.MethodPost, "/v1/commands")
	fmt.Println(apierror.From(submit.Admit(caller)).Detail)
	// Output:
	// <nil>
	// tenant_a true
	// tenant_b false
	// This requires the role submit.
}

func ExampleParseGrant() {
	grant, err := auth.ParseGrant("platform:*:ocr,embed")
	fmt.Println(grant.Role, grant.All, grant.Services, err)
	_, err = auth.ParseGrant("chef:*")
	fmt.Println(err)
	// Output:
	// platform true [ocr embed] <nil>
	// grant "chef:*": role is "chef" and must be submit, read, platform or admin
}

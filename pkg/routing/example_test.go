package routing_test

import (
	"fmt"

	"github.com/lucius-project/lucius/pkg/routing"
)

func ExampleRouter_Decide() {
	router, err := routing.New(routing.Config{})
	if err != nil {
		panic(err)
	}
	decision, err := router.Decide(routing.Request{
		TenantID:    " Tenant_A ",
		DocID:       "doc_1",
		RequestMode: routing.Burst,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(decision.Lane, decision.Topic, decision.RoutingKey)
	fmt.Println(decision.Reason)
	// Output:
	// 5 global-bus-p5 tenant_adoc_1
	// The request asks for BURST: the tenant id and the doc id choose the lane.
}

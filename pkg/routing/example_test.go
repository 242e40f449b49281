package routing_test

import (
	"fmt"

	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

func ExampleRouter_Decide() {
	router, err := routing.New(routing.Config{})
	if err != nil {
		panic(err)
	}
	decision, err := router.Decide(" Tenant_A ", "doc_1", statemachine.ModeBurst, "")
	if err != nil {
		panic(err)
	}
	fmt.Println(decision.Lane, decision.Topic, decision.RoutingKeyUsed)
	fmt.Println(decision.DecisionReason)
	// Output:
	// 5 global-bus-p5 tenant_adoc_1
	// The request asks for BURST: the tenant id and the doc id choose the lane.
}

package fakeservicebus_test

import (
	"context"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
)

// The acknowledgement of the first transfer is lost. The SDK silently resends;
// duplicate detection drops the second copy.
func Example() {
	server, err := fakeservicebus.Start(fakeservicebus.Config{Topics: []fakeservicebus.Topic{{
		Name: "jobs", Subscriptions: []fakeservicebus.Subscription{{Name: "worker"}},
	}}})
	if err != nil {
		fmt.Println("start:", err)
		return
	}
	defer server.Close()
	server.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
		server.SetHooks(fakeservicebus.Hooks{})
		return fakeservicebus.Fault{Effect: fakeservicebus.DropAfter}
	}})

	ctx := context.Background()
	client, err := azservicebus.NewClientFromConnectionString(server.ConnectionString(), &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{RetryDelay: 1, MaxRetryDelay: 1},
	})
	if err != nil {
		fmt.Println("connect:", err)
		return
	}
	defer func() { _ = client.Close(ctx) }()
	sender, err := client.NewSender("jobs", nil)
	if err != nil {
		fmt.Println("open the sender:", err)
		return
	}
	err = sender.SendMessage(ctx, &azservicebus.Message{MessageID: new("outbox-7"), Body: []byte("plan")}, nil)
	fmt.Println("error:", err)
	for _, m := range server.Messages("jobs/Subscriptions/worker") {
		fmt.Printf("%s: %s\n", m.ID, m.Body)
	}
	fmt.Println("duplicates:", server.Duplicates())
	// Output:
	// error: <nil>
	// outbox-7: plan
	// duplicates: 1
}

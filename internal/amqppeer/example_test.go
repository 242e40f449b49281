package amqppeer_test

import (
	"context"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/internal/amqppeer"
)

// The acknowledgement of the first transfer is lost. The SDK sends again and says
// nothing of it; duplicate detection keeps the second copy out.
func Example() {
	server, err := amqppeer.Start(amqppeer.Config{Topics: []amqppeer.Topic{{
		Name: "jobs", Subscriptions: []amqppeer.Subscription{{Name: "worker"}},
	}}})
	if err != nil {
		fmt.Println("start:", err)
		return
	}
	defer server.Close()
	server.SetHooks(amqppeer.Hooks{OnSend: func(string, []string) amqppeer.Fault {
		server.SetHooks(amqppeer.Hooks{})
		return amqppeer.Fault{Effect: amqppeer.DropAfter}
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

// Command submit submits a command of the project that lucius init writes, and follows its
// job to the end.
package main

import (
	"context"
	"fmt"
	"os"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

func main() {
	if err := submit(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func submit(ctx context.Context) error {
	client, err := lucius.NewClient(lucius.ClientConfig{}) // of LUCIUS_URL, with LUCIUS_TOKEN
	if err != nil {
		return err
	}
	defer client.Close()
	accepted, err := client.Submit(ctx, lucius.Command{
		TenantID: "tenant_a", RequestType: "doc.summarize", SchemaVersion: "1",
		InputRef:  lucius.URI("s3://bucket/report.pdf"),
		OutputRef: lucius.URI("s3://bucket/report.summary"),
		Payload:   map[string]any{"words": 100},
	})
	if err != nil {
		return err
	}
	for event, err := range client.Watch(ctx, accepted.JobID) {
		if err != nil {
			return err
		}
		fmt.Println(event.Type, event.ObjectID)
	}
	job, err := client.Wait(ctx, accepted.JobID)
	if err != nil {
		return err
	}
	fmt.Println(job.State, job.FinalOutput.URI())
	return job.Err()
}

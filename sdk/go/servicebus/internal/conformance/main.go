// Command conformance is the conformance worker of the Go SDK on Azure Service Bus:
// sdk/conformance/README.md says what it does.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/internal/conformance/handler"

	"github.com/lucius-project/lucius/sdk/go/servicebus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := work(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// work works until the context ends.
func work(ctx context.Context) error {
	number := map[string]float64{"PARALLEL": 0, "GRACE_SECONDS": 0, "LEASE_SECONDS": 0}
	for name := range number {
		var err error
		if number[name], err = strconv.ParseFloat(os.Getenv("CONFORMANCE_"+name), 64); err != nil {
			return fmt.Errorf("CONFORMANCE_%s: %w", name, err)
		}
	}
	w := lucius.NewWorker(lucius.WorkerConfig{})
	stepType := "CONFORM"
	if os.Getenv("CONFORMANCE_ANY_STEP") != "" {
		stepType = lucius.AnyStep
	}
	w.Handle(stepType, handler.New(os.Stdout))
	return servicebus.Run(ctx, w, servicebus.Config{
		Connection: os.Getenv("SERVICEBUS_CONNECTION"), Service: os.Getenv("CONFORMANCE_SERVICE"), Lanes: 1,
		Parallel: int(number["PARALLEL"]), Lease: handler.Seconds(number["LEASE_SECONDS"]), Grace: handler.Seconds(number["GRACE_SECONDS"]),
	})
}

package luciustest

import (
	"context"
	"fmt"
	"testing/fstest"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// open opens a server with the protocols, and jobs in memory.
func open(ctx context.Context, protocols []string) (*server.Server, error) {
	files := fstest.MapFS{}
	for i, text := range protocols {
		files[fmt.Sprintf("protocol%d.yaml", i)] = &fstest.MapFile{Data: []byte(text)}
	}
	registry, err := commands.LoadProtocolsFS(files)
	if err != nil {
		return nil, err
	}
	return server.Open(ctx, server.Config{
		Store: memstore.New(memstore.Options{}), Protocols: commands.NewProtocolHolder(registry),
		HTTP: httpapi.Config{Auth: auth.New(auth.Config{})}, Routing: routing.Config{Lanes: 1},
		SendWebhook: func(context.Context, webhook.Message) webhook.Result {
			return webhook.Result{Outcome: webhook.Delivered, Status: 204}
		},
		Fatal: func(defect *seqledger.IllegalTransitionError) { panic(defect) },
	})
}

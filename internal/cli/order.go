package cli

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// orderModes are the modes of commands with an order key.
var orderModes = []string{string(api.OrderModeFifo), string(api.OrderModeNewest), string(api.OrderModeReject)}

// ordering holds the flags that put commands into a line.
type ordering struct{ key, mode string }

func (o *ordering) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.key, "order-key", "", "run the jobs of this key one after the other")
	flags.StringVar(&o.mode, "order-mode", "", "fifo, newest (cancel those that wait) or reject (be refused if there is one)")
	completeWords(cmd, "order-mode", orderModes...)
}

// add adds the key and the mode that the flags name to commands.
func (o *ordering) add(commands []command) error {
	if o.mode != "" && !api.OrderMode(o.mode).Valid() {
		return usagef("--order-mode is %q, it must be fifo, newest or reject", o.mode)
	}
	named := struct {
		Key  string `json:"order_key,omitempty"`
		Mode string `json:"order_mode,omitempty"`
	}{o.key, o.mode}
	members, err := json.Marshal(named)
	if err != nil || o.key+o.mode == "" {
		return err
	}
	for i := range commands {
		c := &commands[i]
		var own struct {
			Key  json.RawMessage `json:"order_key"`
			Mode json.RawMessage `json:"order_mode"`
		}
		if err := json.Unmarshal(c.text, &own); err != nil {
			return usagef("line %d: %w", c.line, err)
		}
		switch {
		case o.key != "" && own.Key != nil:
			return usagef("line %d: the command has an order_key: leave out --order-key", c.line)
		case o.mode != "" && own.Mode != nil:
			return usagef("line %d: the command has an order_mode: leave out --order-mode", c.line)
		}
		c.text = withMembers(c.text, members[1:len(members)-1])
	}
	return nil
}

package commands_test

import (
	"fmt"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

func Example_canonicalJSON() {
	tree, err := commands.ParseJSON([]byte(`{ "size": 1.50, "name": "caf\u00e9", "note": null }`))
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", commands.AppendCanonical(nil, tree))
	fmt.Println(commands.HashCanonical(tree))
	// Output:
	// {"name":"café","size":1.5}
	// 3696c05fddb8585d997442f69e0b2c6782d38ff157c2083dfd1286dcf7125771
}

func ExampleParseJSON_refused() {
	_, err := commands.ParseJSON([]byte(`{"pages":[{"no":1,"no":2}]}`))
	fault := apierror.From(err)
	fmt.Println(fault.Code, fault.Errors[0].Pointer)
	// Output: invalid_json /pages/0/no
}

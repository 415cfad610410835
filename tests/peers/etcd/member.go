package main

import (
	"flag"
	"fmt"
	"log"
	"net/url"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
)

const firstPort = 23790

// Member i listens at its address on firstPort+2i for clients and on firstPort+2i+1 for its peers.
func at(addresses []string, member, offset int) url.URL {
	port := firstPort + 2*member + offset
	return url.URL{Scheme: "http", Host: fmt.Sprintf("%s:%d", addresses[member], port)}
}

// runMember runs a member with etcd's default settings, which sync every entry before it counts.
func runMember(args []string) {
	flags := flag.NewFlagSet("member", flag.ExitOnError)
	id := flags.Int("id", 0, "of this member, from 0 on")
	list := flags.String("addresses", "", "of all members, comma-separated, without ports")
	dir := flags.String("dir", "", "of its data")
	check(flags.Parse(args))
	addresses := strings.Split(*list, ",")

	config := embed.NewConfig()
	config.Name = fmt.Sprintf("n%d", *id)
	config.Dir = *dir
	config.LogLevel = "error"
	config.ListenClientUrls = []url.URL{at(addresses, *id, 0)}
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = []url.URL{at(addresses, *id, 1)}
	config.AdvertisePeerUrls = config.ListenPeerUrls
	var members []string
	for member := range addresses {
		peer := at(addresses, member, 1)
		members = append(members, fmt.Sprintf("n%d=%s", member, peer.String()))
	}
	config.InitialCluster = strings.Join(members, ",")
	member, err := embed.StartEtcd(config)
	check(err)
	<-member.Server.ReadyNotify()
	fmt.Println("READY")
	log.Fatal(<-member.Err())
}

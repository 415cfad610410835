{{/* Commands that NOTES.txt shows. Within a pod `holdfast` knows by its variables where the node is and how to connect. */}}

{{- define "holdfast.exec" -}}
kubectl exec --namespace {{ .Release.Namespace }} {{ include "holdfast.fullname" . }}-0 -- holdfast
{{- end -}}

{{/* Begins the cluster. It is given to one node, once in the life of the cluster. */}}
{{- define "holdfast.init" -}}
{{ include "holdfast.exec" . }} cluster init
{{- end -}}
